"""The cost model in TVM's MetaSchedule, and what a tuner needs around it."""
