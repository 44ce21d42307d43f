#!/usr/bin/env bash
# Net::SFTP::SftpServer: a file called 0 is in no listing, so copies of its directory leave it out and succeed.
#
# Seen with: libnet-sftp-sftpserver-perl 1.1.0-7 (Debian 12), OpenSSH 9.2p1's sftp as the client.
#
# The server lists a directory for as long as the next name is true, and Perl's "0" is not. The listing goes on behind it
# with the client's next request. The file itself can be looked up and read under its name, and "00" is listed.
#
# Why it matters: numbered files (shards, chunks, partitions) begin with 0. "get -r" and backups fetch the others and end
# with status 0, and a mirror that deletes removes the copy from before. Where such a server may be at the other end,
# compare the number of names with what the application expects.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq libnet-sftp-sftpserver-perl=1.1.0-7 libstat-lsmode-perl >apt.log 2>&1 || { cat apt.log >&2; exit 1; }
for package in *.deb; do dpkg -x "$package" root; done
cat >server.pl <<'PL'
use Net::SFTP::SftpServer ({ log => 'local5' }, qw(:LOG :ACTIONS));
Net::SFTP::SftpServer->new(home => "$ENV{HOME}/files")->run();
PL
mkdir files files/there
for name in 0 00 1 2; do echo "content of $name" >"files/there/$name"; done

# sftp runs the server itself, whose root directory is files.
client() {
    HOME=$dir PERL5LIB=$dir/root/usr/share/perl5 sftp -q -b - -D "/usr/bin/perl $dir/server.pl" 2>sftp.log | grep -v '^sftp>'
}
{
    echo "listed:"
    echo "ls -1 /there" | client | sed 's,.*/,    ,' | sort
    echo "looked up:"
    echo "ls -1 /there/0" | client | sed 's,.*/,    ,'
    echo "copied:"
    echo "get -r /there here" | client >get.log
    ls here | sed 's/^/    /'
} >actual || { cat sftp.log >&2; exit 1; }

cat >expected <<'END'
listed:
    00
    1
    2
looked up:
    0
copied:
    00
    1
    2
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
