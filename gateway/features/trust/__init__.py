"""Trust in stored answers: the clients that an answer serves before independent clients have confirmed it."""
