"""Rules as text: parsing, printing and checking them."""
