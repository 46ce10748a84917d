"""kleash as a guest in other people's trainers."""
