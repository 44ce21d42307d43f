#!/usr/bin/env python3
"""An SFTP v3 server for tests. It logs each request and answer as one JSON line, and misbehaves where it is told to.

Without rules it serves files as OpenSSH's sftp-server does. In sshd_config:
    Subsystem sftp /usr/bin/python3 /path/sftp-faults.py --log LOG --rules RULES
Without SSH it speaks on stdin and stdout: sftp -D "python3 sftp-faults.py status:WRITE:20:4"
Rules are words, given as arguments or in the file --rules, which is read when a session begins, so that a test can
change them while sshd runs. `#` begins a comment there.
Rules for requests, VERB:KIND:WHICH[:ARGUMENT...]. KIND is a request's name (WRITE, OPEN ...), an extension's
(posix-rename@openssh.com) or ANY. WHICH counts them in each session from 1: 20, 20-25, 20- (from there on) or *.
    cut:KIND:WHICH:before|after[:exit]   end instead of doing it, or after doing it and before its answer: the
                                         connection breaks (sshd is killed), with `exit` only this server ends
    status:KIND:WHICH:CODE[:do]          answer with that status instead of doing it, or after doing it
    stall:KIND:WHICH:SECONDS             sleep first; whatever comes later waits as well
    short:READ:WHICH:BYTES               answer with at most so many bytes
    reorder:KIND:WHICH:N                 hold N answers (or those that come within 50 ms), send the last one first
    twice:KIND:WHICH                     send the answer twice
    resize:READ:WHICH:BYTES              first give the open file that size, as another program might
Rules for the session:
    gather:MS        answer only when nothing has come for so long: "ahead" in the log shows how far a client goes
    names:N          the names in an answer to READDIR (100)
    ext:A,B or ext:  announce only these extensions, or none (they work all the same)
    limits:R:W:H     what limits@openssh.com says of READ, WRITE and handles (261120:261120:1019)
    symlink:draft    SYMLINK takes the link's path first
    share:N          every Nth OPEN beside another open file is answered with that one's handle
    open:unlinks     a file is removed when it is opened to be written, whatever the flags are
    open:plain       a file is made by WRITE|CREAT|TRUNC only: with other flags there is none
    lstat:follows    LSTAT follows links
    write:ordered    a WRITE that leaves out bytes behind what is there fails
    readlink:path    READLINK answers with the path, whatever is there
    close:takes      a file that was written and closed is taken away, as a dropbox does
    sessions:N       the rules for requests are for the first N sessions in the log; later ones work normally
The log: "ev" is start, request, answer, fault or end; "session" counts from 1; "t" is in seconds; "ahead" is the number
of unanswered requests, this one included. Data is not logged, its length is.
"""
import argparse, json, os, queue, stat, struct, sys, threading, time, types

REQUESTS = {1: 'INIT', 3: 'OPEN path flags attrs', 4: 'CLOSE handle', 5: 'READ handle offset length',
            6: 'WRITE handle offset data', 7: 'LSTAT path', 8: 'FSTAT handle', 9: 'SETSTAT path attrs',
            10: 'FSETSTAT handle attrs', 11: 'OPENDIR path', 12: 'READDIR handle', 13: 'REMOVE path',
            14: 'MKDIR path attrs', 15: 'RMDIR path', 16: 'REALPATH path', 17: 'STAT path', 18: 'RENAME path to',
            19: 'READLINK path', 20: 'SYMLINK path to', 200: 'EXTENDED name'}
ANSWERS = {'VERSION': 2, 'STATUS': 101, 'HANDLE': 102, 'DATA': 103, 'NAME': 104, 'ATTRS': 105, 'EXTENDED_REPLY': 201}
OK, EOF, FAILURE, OP_UNSUPPORTED = 0, 1, 4, 8
SETTINGS = {'gather': '0', 'names': '100', 'ext': None, 'limits': '261120:261120:1019', 'sessions': 'inf',
            'symlink': 'openssh', 'share': '0', 'close': '', 'open': '', 'lstat': '', 'write': '', 'readlink': ''}
FLAGS = {1: 'READ', 2: 'WRITE', 4: 'APPEND', 8: 'CREAT', 16: 'TRUNC', 32: 'EXCL'}
EXTENSIONS = {'posix-rename@openssh.com': '1', 'statvfs@openssh.com': '2', 'hardlink@openssh.com': '1',
              'fsync@openssh.com': '1', 'limits@openssh.com': '1', 'expand-path@openssh.com': '1'}


def u32(n): return struct.pack('>I', n & 0xffffffff)
def u64(n): return struct.pack('>Q', n)
def string(s): return u32(len(s)) + s
def encode_attrs(s): return struct.pack('>IQIIIII', 15, s.st_size, s.st_uid, s.st_gid, s.st_mode, int(s.st_atime), int(s.st_mtime))


class Fields:
    """A request's fields, taken one by one from the front. Each method is named after the field that it reads."""
    def __init__(self, raw): self.raw, self.at = raw, 0
    def take(self, n): self.at += n; return self.raw[self.at - n:self.at]
    def length(self): return struct.unpack('>I', self.take(4))[0]
    def offset(self): return struct.unpack('>Q', self.take(8))[0]
    def data(self): return self.take(self.length())
    def path(self): return os.fsdecode(self.data())
    def handle(self): return self.data().hex()
    def name(self): return self.data().decode()
    flags, to = length, path

    def attrs(self):
        flags, a = self.length(), {}
        if flags & 1: a['size'] = self.offset()
        if flags & 2: a['uid'], a['gid'] = self.length(), self.length()
        if flags & 4: a['mode'] = self.length()
        if flags & 8: a['atime'], a['mtime'] = self.length(), self.length()
        return a


def encode_names(entries):
    """`entries` are names with their os.stat_result, or with None."""
    answer = u32(len(entries))
    for name, st in entries:
        long = '%s %4d %-8d %-8d %8d %s ' % (stat.filemode(st.st_mode), st.st_nlink, st.st_uid, st.st_gid, st.st_size,
                                             time.strftime('%b %d %H:%M', time.localtime(st.st_mtime))) if st else ''
        answer += string(os.fsencode(name)) + string(os.fsencode(long + name)) + (encode_attrs(st) if st else u32(0))
    return 'NAME', answer


def set_attrs(target, a):
    """`target` is a path or a descriptor."""
    if 'size' in a: os.truncate(target, a['size'])
    if 'uid' in a: os.chown(target, a['uid'], a['gid'])
    if 'mode' in a: os.chmod(target, stat.S_IMODE(a['mode']))
    if 'mtime' in a: os.utime(target, (a['atime'], a['mtime']))


def parse(word):
    verb, kind, which, *args = word.split(':')
    first, dash, last = which.partition('-')
    return types.SimpleNamespace(word=word, verb=verb, kind=kind, args=args, first=1 if which == '*' else int(first),
                                 last=float('inf') if which == '*' or dash and not last else int(last or first))


class Server:
    def __init__(self, log, words):
        self.log_file, self.opened, self.counts, self.held, self.handles = log, {}, {}, [], 0
        self.inbox, self.lock, self.unanswered, self.opens = queue.Queue(), threading.Lock(), 0, 0
        settings = [word.partition(':') for word in words if word.partition(':')[0] in SETTINGS]
        self.settings = {**SETTINGS, **{name: value for name, _, value in settings}}
        with open(log.name if log else os.devnull) as f: self.session = 1 + sum('"ev": "start"' in line for line in f)
        self.rules = [parse(word) for word in words if word.partition(':')[0] not in SETTINGS]
        if self.session > float(self.settings['sessions']): self.rules = []
        self.log(ev='start', rules=[r.word for r in self.rules])

    def log(self, **event):
        line = json.dumps({'session': self.session, 't': round(time.time(), 4), **event})
        with self.lock: self.log_file and print(line, file=self.log_file, flush=True)

    def run(self):
        threading.Thread(target=self.receive, daemon=True).start()
        gather = int(self.settings['gather']) / 1000
        while True:
            try: batch = [self.inbox.get(timeout=0.05 if self.held else None)]
            except queue.Empty: self.release(); continue
            while gather and batch[-1]:
                try: batch.append(self.inbox.get(timeout=gather))
                except queue.Empty: break
            for request in batch: self.serve(request) if request else self.end('stdin ended')

    def receive(self):
        while len(head := sys.stdin.buffer.read(4)) == 4:
            body = sys.stdin.buffer.read(struct.unpack('>I', head)[0])
            kind, *names = REQUESTS.get(body[0], str(body[0])).split()
            fields = Fields(body[1:])
            request = {'kind': kind, 'id': fields.length(), **{name: getattr(fields, name)() for name in names}}
            if 'data' in request: request['length'] = len(request['data'])
            with self.lock: self.unanswered += 1
            shown = {name: value for name, value in request.items() if name != 'data'}
            if kind == 'OPEN': shown['flags'] = '|'.join(name for bit, name in FLAGS.items() if request['flags'] & bit)
            self.log(ev='request', **shown, ahead=self.unanswered)
            self.inbox.put({**request, 'rest': fields})
        self.inbox.put(None)

    def serve(self, request):
        kinds = (request['kind'], request.get('name'), 'ANY')
        for kind in kinds: self.counts[kind] = self.counts.get(kind, 0) + 1
        rules = {r.verb: r for r in self.rules if r.kind in kinds and r.first <= self.counts[r.kind] <= r.last}
        for rule in rules.values(): self.log(ev='fault', rule=rule.word, id=request['id'])
        cut, status = rules.get('cut'), rules.get('status')
        if cut and cut.args[0] == 'before': self.cut(cut)
        if 'stall' in rules: time.sleep(float(rules['stall'].args[0]))
        if 'resize' in rules: os.truncate(self.opened[request['handle']].path, int(rules['resize'].args[0]))
        answer = self.attempt(request) if not status or 'do' in status.args else None
        if status: answer = 'STATUS', u32(int(status.args[0])) + string(b'told to say so') + string(b'')
        if 'short' in rules and answer[0] == 'DATA': answer = 'DATA', string(answer[1][4:4 + int(rules['short'].args[0])])
        if cut: self.cut(cut)
        if 'reorder' not in rules: self.release()
        self.held += [(request, answer)] * (2 if 'twice' in rules else 1)
        if 'reorder' not in rules or len(self.held) >= int(rules['reorder'].args[0]): self.release()

    def attempt(self, request):
        """Do what a request asks. The methods below return nothing for OK, a status and its text, or an answer's body."""
        try: answer = getattr(self, request['kind'].lower(), self.unsupported)(request) or (OK, 'Success')
        except KeyError: answer = FAILURE, 'no such handle'
        except OSError as e: answer = {FileNotFoundError: 2, PermissionError: 3}.get(type(e), FAILURE), e.strerror
        if isinstance(answer[1], bytes): return answer
        return 'STATUS', u32(answer[0]) + string(answer[1].encode()) + string(b'')

    def release(self):
        while self.held:
            request, (kind, body) = self.held.pop()
            shown = {'STATUS': lambda: {'code': body[3]}, 'DATA': lambda: {'length': len(body) - 4},
                     'HANDLE': lambda: {'handle': body[4:].hex()}}.get(kind, dict)()
            with self.lock: self.unanswered -= 1
            self.log(ev='answer', id=request['id'], to=request['kind'], kind=kind, **shown)
            packet = bytes([ANSWERS[kind]]) + u32(3 if kind == 'VERSION' else request['id']) + body
            try: sys.stdout.buffer.write(string(packet)); sys.stdout.buffer.flush()
            except OSError: self.end('nobody reads')

    def cut(self, rule):
        pid, name = os.getppid(), ''
        while 'exit' not in rule.args and pid > 1 and not name.startswith('sshd'):
            with open('/proc/%d/stat' % pid) as f: name, after = f.read().split('(', 1)[1].rsplit(')', 1)
            if name.startswith('sshd'): os.kill(pid, 9)
            pid = int(after.split()[1])
        self.end('cut')

    def end(self, why): self.log(ev='end', why=why); os._exit(0)
    def add(self, **opened):
        self.handles += 1
        self.opened[u32(self.handles).hex()] = types.SimpleNamespace(**opened)
        return 'HANDLE', string(u32(self.handles))

    def init(self, r):
        names = EXTENSIONS if self.settings['ext'] is None else self.settings['ext'].split(',')
        return 'VERSION', b''.join(string(n.encode()) + string(EXTENSIONS[n].encode()) for n in names if n)

    def open(self, r):
        flags = {2: os.O_WRONLY, 3: os.O_RDWR}.get(r['flags'] & 3, os.O_RDONLY)
        bits = {4: os.O_APPEND, 8: os.O_CREAT, 16: os.O_TRUNC, 32: os.O_EXCL}
        flags |= sum(flag for bit, flag in bits.items() if r['flags'] & bit)
        there = os.path.exists(r['path'])
        if self.settings['open'] == 'plain' and not there and r['flags'] != 2 | 8 | 16: raise FileNotFoundError(2, 'no such file')
        if self.settings['open'] == 'unlinks' and there and r['flags'] & 2: os.remove(r['path'])
        fd = os.open(r['path'], flags, r['attrs'].get('mode', 0o666) & 0o7777)
        share = int(self.settings['share'])
        self.opens += 1
        if share and self.opened and self.opens % share == 0:
            shared = list(self.opened)[-1]
            self.opened[shared] = types.SimpleNamespace(path=r['path'], fd=fd, writes=True)
            return 'HANDLE', string(bytes.fromhex(shared))
        return self.add(path=r['path'], fd=fd, writes=r['flags'] & 2)

    def read(self, r):
        data = os.pread(self.fd(r['handle']), min(r['length'], 261120), r['offset'])
        return ('DATA', string(data)) if data or not r['length'] else (EOF, 'End of file')

    def write(self, r):
        if self.settings['write'] and os.fstat(self.fd(r['handle'])).st_size < r['offset']: return FAILURE, 'Illegal seek'
        done = 0
        while done < r['length']: done += os.pwrite(self.fd(r['handle']), r['data'][done:], r['offset'] + done)

    def readdir(self, r):
        opened, n = self.opened[r['handle']], int(self.settings['names'])
        some, opened.names = opened.names[:n], opened.names[n:]
        if not some: return EOF, 'End of file'
        return encode_names([(name, os.lstat(os.path.join(opened.path, name))) for name in some])

    def rename(self, r):
        if os.path.lexists(r['to']): return FAILURE, 'the target exists'
        os.rename(r['path'], r['to'])

    def fd(self, handle): return self.opened[handle].fd
    def opendir(self, r):
        return self.add(path=r['path'], fd=os.open(r['path'], os.O_RDONLY), names=['.', '..'] + sorted(os.listdir(r['path'])))
    def close(self, r):
        closed = self.opened.pop(r['handle'])
        os.close(closed.fd)
        if self.settings['close'] == 'takes' and getattr(closed, 'writes', False):
            taken = os.path.join(os.path.dirname(closed.path), 'taken')
            os.makedirs(taken, exist_ok=True)
            os.rename(closed.path, os.path.join(taken, os.path.basename(closed.path)))

    def lstat(self, r): return 'ATTRS', encode_attrs((os.stat if self.settings['lstat'] else os.lstat)(r['path']))
    def stat(self, r): return 'ATTRS', encode_attrs(os.stat(r['path']))
    def fstat(self, r): return 'ATTRS', encode_attrs(os.fstat(self.fd(r['handle'])))
    def setstat(self, r): set_attrs(r['path'], r['attrs'])
    def fsetstat(self, r): set_attrs(self.fd(r['handle']), r['attrs'])
    def remove(self, r): os.remove(r['path'])
    def mkdir(self, r): os.mkdir(r['path'], r['attrs'].get('mode', 0o777) & 0o7777)
    def rmdir(self, r): os.rmdir(r['path'])
    def readlink(self, r): return encode_names([(r['path'] if self.settings['readlink'] else os.readlink(r['path']), None)])
    def realpath(self, r): return encode_names([(os.path.realpath(r['path'] or '.'), None)])
    def symlink(self, r):
        first, second = r['path'], r['to']    # in OpenSSH's order what it points to comes first
        os.symlink(*((second, first) if self.settings['symlink'] == 'draft' else (first, second)))
    def unsupported(self, r): return OP_UNSUPPORTED, 'not supported'

    def extended(self, r):
        name, f = r['name'].partition('@')[0], r['rest']
        if name == 'posix-rename': os.rename(f.path(), f.path())
        elif name == 'hardlink': os.link(f.path(), f.path())
        elif name == 'fsync': os.fsync(self.fd(f.handle()))
        elif name == 'limits':
            return 'EXTENDED_REPLY', u64(262144) + b''.join(u64(int(n)) for n in self.settings['limits'].split(':'))
        elif name == 'expand-path': return encode_names([(os.path.realpath(os.path.expanduser(f.path())), None)])
        elif name == 'statvfs':
            v = os.statvfs(f.path())
            return 'EXTENDED_REPLY', b''.join(map(u64, (*v[:8], v.f_fsid, v.f_flag & 3, v.f_namemax)))
        else: return self.unsupported(r)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--log', type=argparse.FileType('a'))
    parser.add_argument('--rules'); parser.add_argument('rule', nargs='*')
    options = parser.parse_args()
    with open(options.rules or os.devnull) as f: words = [word for line in f for word in line.partition('#')[0].split()]
    Server(options.log, words + options.rule).run()
