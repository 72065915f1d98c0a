"""What a hostile reviewer found, each once: cancelled workers, dead links, tellers that raise, stuck claims."""
