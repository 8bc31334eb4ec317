"""The algebra of linear-attention states: families, transition forms, rotation of states."""
