"""What collectd's programs and modules speak: its types, its plain-text commands, its readings.

Shared by the plugins `exec` and `collectd_python`.
"""
