"""WDL documents as plans."""
