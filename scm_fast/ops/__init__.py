"""Operations, each with its dispatch and its hand-written backward."""
