# Takes the time of connections as netpeer's connect does: connect.py HOST:PORT COUNT
import json, socket, sys, time

host, port = sys.argv[1].split(":")
to, warm_up = (socket.gethostbyname(host), int(port)), 20
connect, both = [], []
for i in range(warm_up + int(sys.argv[2])):
    began = time.perf_counter_ns()
    s = socket.socket()
    s.settimeout(30)
    s.connect(to)
    connected = time.perf_counter_ns()
    s.sendall(b"e")
    answer = s.recv(1)
    ended = time.perf_counter_ns()
    s.close()
    if answer != b"e":
        sys.exit(f"a wrong answer: {answer}")
    if i >= warm_up:
        connect.append(connected - began)
        both.append(ended - began)
print(json.dumps({"Connect": connect, "Both": both}))
