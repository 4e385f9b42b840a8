"""The ledger: who holds what. The unique index on live units is the proof that nothing is booked twice."""
