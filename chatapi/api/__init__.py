"""What Django answers: the client routes that read, the reference, health, pages, and errors in their
envelope.
"""
