"""Names of native functions: ELF symbols of mapped files, read without any tool, kept by build-id."""
