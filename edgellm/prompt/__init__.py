"""The prompt room: chat templates in a bounded sandbox, and where a prompt's stable prefix ends."""
