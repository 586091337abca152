"""What Inductor generates for a network, read as text, next to what is predicted of it."""
