#!/usr/bin/env bash
# Perl's Net::SFTP::Foreign: after read() has met the end of a file, the handle stands behind the end.
#
# Seen with: Net::SFTP::Foreign 1.93 (Debian 12's libnet-sftp-foreign-perl), asyncssh 2.24.1 as the server; Perl's own
# handles for comparison.
#
# The handles are tied, so that Perl's functions work on them. read() moves the position by the length that was asked
# for, not by what it returned. tell() is wrong from then on, a relative seek() misses, and print writes further on,
# with zeros in between. A truncate() does not see what print has buffered: that is written after it, again behind a
# gap. With $/ = \3 or $/ = '', readline returns the whole file as one record. No call fails.
#
# Why it matters: "read a block that is surely large enough, then add to the file" is what one does with a small file
# open for both. Here the addition lands up to a block away, and the file is longer by zeros. Call seek($fh, 0, 2)
# before the write; the method $sftp->read() counts correctly. Call $sftp->flush($fh) before truncate().
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq libnet-sftp-foreign-perl=1.93+dfsg-1 >apt.log 2>&1 || { cat apt.log >&2; exit 1; }
dpkg -x ./*.deb root
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1

cat >server.py <<'PY'
import asyncio
import os

import asyncssh


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, sftp_factory=True,
                                   server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")])
    with open("port.new", "w") as file:
        file.write(str(server.get_port()))
    os.rename("port.new", "port")
    await server.wait_closed()


asyncio.run(main())
PY
cat >run.pl <<'PL'
use strict;
use warnings;
use Cwd;
use Fcntl qw(SEEK_CUR SEEK_END);
use Net::SFTP::Foreign;
use Net::SFTP::Foreign::Constants qw(SSH2_FXF_READ SSH2_FXF_WRITE);

my $path = getcwd() . '/file';
my $sftp = Net::SFTP::Foreign->new('127.0.0.1', user => 'u', port => shift, more => [
    qw(-q -F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null)]);
die $sftp->error if $sftp->error;

sub local_file { open my $file, '+<', $path or die; return $file }
sub sftp_file { return $sftp->open($path, SSH2_FXF_READ | SSH2_FXF_WRITE) || die $sftp->error }

sub show {
    my ($what, $work) = @_;
    for my $kind (['Perl', \&local_file], ['SFTP', \&sftp_file]) {
        open my $fresh, '>', $path or die;
        print $fresh '0123456789';
        close $fresh;
        my $file = $kind->[1]->();
        my $result = $work->($file);
        close $file or die;
        open my $check, '<', $path or die;
        my $text = <$check>;
        $text =~ s/\0/./g;
        print "$what, $kind->[0]: $result, $text\n";
    }
}

show 'read 16, tell', sub { my $file = shift; read $file, my $text, 16; return tell $file };
show 'read 16, print', sub { my $file = shift; my $got = read $file, my $text, 16; print $file 'abc'; return $got };
show 'read 16, back by 2, read', sub {
    my $file = shift;
    read $file, my $text, 16;
    seek $file, -2, SEEK_CUR;
    return 'got ' . read $file, $text, 2;
};
show 'read 16, seek to the end, print', sub {
    my $file = shift;
    read $file, my $text, 16;
    seek $file, 0, SEEK_END;
    print $file 'abc';
    return tell $file;
};
show 'print at the end, truncate to 5', sub {
    my $file = shift;
    seek $file, 0, SEEK_END;
    print $file 'abc';
    return (tied *$file ? $sftp->truncate($file, 5) : truncate $file, 5) ? 'done' : 'failed';
};
show 'records of 3', sub { my $file = shift; local $/ = \3; my @records = <$file>; return "@records" };
PL
venv/bin/python server.py 2>log &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done
timeout 60 perl -I root/usr/share/perl5 run.pl "$(cat port)" >actual

cat >expected <<'END'
read 16, tell, Perl: 10, 0123456789
read 16, tell, SFTP: 16, 0123456789
read 16, print, Perl: 10, 0123456789abc
read 16, print, SFTP: 10, 0123456789......abc
read 16, back by 2, read, Perl: got 2, 0123456789
read 16, back by 2, read, SFTP: got 0, 0123456789
read 16, seek to the end, print, Perl: 13, 0123456789abc
read 16, seek to the end, print, SFTP: 13, 0123456789abc
print at the end, truncate to 5, Perl: done, 01234
print at the end, truncate to 5, SFTP: done, 01234.....abc
records of 3, Perl: 012 345 678 9, 0123456789
records of 3, SFTP: 0123456789, 0123456789
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
