"""The parent's side: the plan, the routes of an answer, and what is done when one of them fails."""
