"""What is written down of answers: consents, budget, audit log, breakers. Damage is never reset."""
