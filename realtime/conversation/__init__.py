"""The core of a conversation: whose turn it is, what is heard, the items, the answers.."""
