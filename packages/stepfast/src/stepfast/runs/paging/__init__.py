"""What a page means for its partition: go on, step back, or the end, and whether the end is proven. Pure."""
