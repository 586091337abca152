"""What real jobs exchange: collectives and bytes of small training jobs on gloo, next to what is predicted."""
