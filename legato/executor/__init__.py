"""A StepPlan becomes sampled tokens."""
