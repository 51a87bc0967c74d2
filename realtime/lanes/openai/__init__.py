"""The lane of OpenAI Realtime (GA) clients."""
