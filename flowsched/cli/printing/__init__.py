"""How answers are printed: forms, tables, pictures, and text that is safe for a terminal."""
