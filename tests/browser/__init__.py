"""The JavaScript client, in Node and in Chromium: the same verdicts as the Python client's, and streams that go on."""
