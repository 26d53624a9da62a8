"""One round of one cohort, averaged in many ways: `fedfish laboratory`."""
