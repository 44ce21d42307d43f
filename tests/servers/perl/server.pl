# As in its example, but that a home which begins with HOME is all that can be seen of the machine.
use strict;
use warnings;

BEGIN { $ENV{HOME} = '' }
use Net::SFTP::SftpServer ({ log => 'local5' }, qw(:LOG :ACTIONS));

Net::SFTP::SftpServer->new(home => '/.', file_perms => 0644, dir_perms => 0755)->run();
