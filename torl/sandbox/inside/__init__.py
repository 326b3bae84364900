"""What runs in the tool environment: the zygote and its children. Standard library only."""
