#!/bin/sh
echo "This portal has no packages for appliances yet." >&2
echo "On its host, an operator runs: {{ command }}" >&2
exit 1
