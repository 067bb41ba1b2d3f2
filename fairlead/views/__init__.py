"""What people read: the shapes that the API answers with and that SDK, CLI and page show."""
