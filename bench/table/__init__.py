"""The performance table: chatapi beside the floor of its shape and another gateway, on both databases."""
