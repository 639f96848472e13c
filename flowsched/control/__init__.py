"""The loops: intake, dispatch, leading, recovery; and what the faces may ask."""
