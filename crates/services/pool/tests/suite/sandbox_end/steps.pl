# A pool that is killed while a sandbox starts: runs a command up to a chosen step, then ends.
#
# steps.pl PTRACE EXECUTABLE WHOM STEPS COMMAND...
#
# PTRACE is the number of that system call; EXECUTABLE becomes the standard input of the command. WHOM is `first` (the
# command from its beginning), `outer` (the command from the moment when it has a child) or `inner` (that child from its
# beginning). A step is the entry into a system call, or the return from it. The standard input of this script is the
# pool's end of the socket to the init process, its standard output is the other end.
#
# Ends with 0 at the chosen step, 7 if the process ended before it, 8 if the process waits for others before it.
use strict;
use warnings;
use POSIX ();

my ($TRACEME, $CONT, $DETACH, $SYSCALL, $SETOPTIONS) = (0, 7, 17, 24, 0x4200);
my $CHILDREN = 0x2 | 0x4 | 0x8;
my ($ptrace, $executable, $whom, $steps, @command) = @ARGV;

sub ask {
    my ($request, $pid, $data) = @_;
    syscall($ptrace + 0, $request, $pid + 0, 0, $data) == 0 or die "ptrace $request: $!";
}

# State of the process: `t` if it is stopped at a step, `S` if it waits. Perl does not tell a stop from an end.
sub state {
    open my $stat, '<', "/proc/$_[0]/stat" or return '';
    return <$stat> =~ /\) (\S) / ? $1 : '';
}

my $child = fork // die "fork: $!";
if ($child == 0) {
    open STDIN, '<', $executable or die "$executable: $!";
    ask($TRACEME, 0, 0);
    exec { $command[0] } @command or die "$command[0]: $!";
}
POSIX::close(1);
waitpid $child, 0;
my $traced = $child;
if ($whom ne 'first') {
    ask($SETOPTIONS, $child, $CHILDREN);
    ask($CONT, $child, 0);
    # Both stop: the parent with the event, the child at its beginning.
    my %stopped;
    while (keys %stopped < 2) {
        my $pid = waitpid -1, 0;
        POSIX::_exit(7) if $pid < 0 || state($pid) ne 't';
        $stopped{$pid} = 1;
    }
    my ($inner) = grep { $_ != $child } keys %stopped;
    $traced = $whom eq 'outer' ? $child : $inner;
    # What these start in turn is not stopped.
    ask($SETOPTIONS, $_, 0) for $child, $inner;
    ask($DETACH, $whom eq 'outer' ? $inner : $child, 0);
}
for (1 .. $steps) {
    ask($SYSCALL, $traced, 0);
    my $looks = 0;
    while ((my $pid = waitpid $traced, POSIX::WNOHANG()) <= 0) {
        $looks = state($traced) eq 'S' ? $looks + 1 : 0;
        POSIX::_exit(8) if $pid < 0 || $looks > 300;
        select undef, undef, undef, 0.001 if $looks;
    }
    POSIX::_exit(7) if state($traced) ne 't';
}
POSIX::_exit(0);
