"""Lines at the edges of the grammar and of the fast path: the fuzz target's seeds."""

LINES = (
    b"m,a=b f=1,g=2 5", b"m,a=c f=1,g=2 5", b"m,a=b f=1i,g=-2i 5", b"m,a=b f=9i3,g=2i 5",
    b"m,a=b f=i93,g=2i 5", b"m,a=b f=,g5=3 5", b"m,a=b f=1,g=2", b"m,a=b f=-0,g=1e-05 5",
    b"m,a=b f=-0i,g=1e+05 5", b"m,a=b f=1e5i,g=e 5", b"m,a=b f5=1,g=2 5", b"m,a=b 5f=1,g=2 5",
    b"m,a=b f=1.,g=.5 5", b"m,a=b f=00,g=+1 5", b"m,a=b f=1e999,g=2 5", b"m,a=b g=1,f=2 5",
    b"m,a=b f=1,f=2 5", b"m,a=b,c=d f=1,g=2 5", b"m,c=d,a=b f=1,g=2 5", b"m,a=b,a=c f=1,g=2 5",
    b"m,a= f=1,g=2 5", b"m,a=b=c f=1,g=2 5", b"m,a f=1,g=2 5", b"m f=1,g=2 5", b"n f=1,g=2 5",
    b"m,a=b f=t,g=F 5", b"m,a=b f=false,g=True 5", b"m,a=b f=tr5ue,g=tT 5",
    b"m,a=b f=t5,g=e 5", b"m,a=b f=1,g=2 5\r\r", b"m,a=b f=1,g=2 5\r\nm f=bad\r\nm f=1",
    b'm,a=b f="x y",g=2 5', b'm,a=b f="x\ny",g=2 5', b'm,a=b f="open,g=2 5',
    b"m,a=\\ b f=1,g=2 5", b"#m,a=b f=1,g=2 5", b"", b"\r", b"\t", b" ", b"m,a=b f=1,g=2 5\r",
    b"m,a=b f=1,g=2 -5", b"m,a=b f=1,g=2 9223372036854775807", b"m,a=b f=1,g=2 5 6",
    b"m,a=b  f=1,g=2 5", b"m,a=b f=1,g=2 x", b"m,a=\xff f=1,g=2 5", b"m,a=\xc3\xa9 f=1,g=2 5",
    b"m,a=b \xc3\xa9=1,g=2 5", b"m,a=b f=\xd9\xa1,g=2 5", b"m,a=b f=1 ,g=2 5", b"5 5=5 5",
    b"=, = ,", b"m,a=b f=9223372036854775808i,g=1 5", b"m,a=b f=99999999999999999999,g=1 5",
    b"m,a=b f=0.1234567890123456789012345,g=" + b"9" * 400 + b" 5", b"m,a=b f=1_0,g=nan 5",
)  # fmt: skip
