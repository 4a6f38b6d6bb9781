"""The tunnel between portal and agent: SSH in binary messages of a WebSocket.

GET /agent/v1/tunnel, authenticated as every request of the agent API. The agent opens it while the
desired state `wants_tunnel`. In SSH the agent is the server: it accepts connections to the ports of
running attempts (`direct-tcpip`, with the attempt's id as the host), sessions of `protocol.exec`,
and nothing else.
"""

import socket

TUNNEL_PATH = "/agent/v1/tunnel"
CHUNK_BYTES = 64 * 1024
# The fastest in Python; TLS protects the connection, too.
CIPHER = "aes128-gcm@openssh.com"


def connected_sockets() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets, for SSH and for what moves its bytes.

    They are TCP ones of the loopback interface: asyncssh needs the address of its peer.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        while True:
            theirs, peer = server.accept()
            if peer == ours.getsockname():
                for one in (ours, theirs):
                    # asyncio does so for its own; else the second of two small writes waits 40 ms.
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return ours, theirs
            theirs.close()  # another program of this machine
