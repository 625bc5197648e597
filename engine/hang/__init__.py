"""Why a job of many ranks hangs: a verdict from what is known of each rank. Pure: no process is asked here."""
