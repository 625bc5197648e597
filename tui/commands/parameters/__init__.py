"""What is told of parameters: a listing, and which of them differ between the ranks of a job."""
