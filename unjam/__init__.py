"""unjam takes the traffic jams out of Mixture-of-Experts training."""
