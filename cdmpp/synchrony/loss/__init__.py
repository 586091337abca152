"""Loss against time: a measured curve of one worker, and the rule that carries it to a job of many."""
