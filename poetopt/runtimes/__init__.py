"""What a runtime takes of RAM beside what it reads and writes."""
