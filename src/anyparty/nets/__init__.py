"""Networks: encoders, heads, and what trains them."""
