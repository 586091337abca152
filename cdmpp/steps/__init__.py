"""Training steps on several ranks: what each computes and exchanges, replayed."""
