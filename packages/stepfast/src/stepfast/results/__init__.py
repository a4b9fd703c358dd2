"""How jobs end: what they answered, who waits for it, and how they come along until then."""
