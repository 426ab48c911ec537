"""Graph -> Graph: what works in place is joined, cheap chains become blocks, the order is kept low in memory."""
