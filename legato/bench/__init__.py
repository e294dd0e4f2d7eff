"""Seeded workloads that drive servers, and what they measured."""
