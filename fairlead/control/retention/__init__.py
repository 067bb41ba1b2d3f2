"""What is deleted when: ended jobs, their outputs, and old rows."""
