"""What runs amount to, for people: collected from files, then drawn."""
