"""HYPIC: position-independent caching for hybrid-attention language models."""
