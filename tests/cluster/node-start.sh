# The second half of a node's boot, still PID 1, all in the node's own root: its network, its daemons. Then it waits for its end.
set -euo pipefail
name=$1 address=$2 role=$3
exec 3<&0 </dev/null >>/var/log/slurm/boot 2>&1

# The pipe is nobody's but ours.
start() { "$@" 3<&- & }
fail() { echo "gave up: $*"; touch /run/node/failed; exit 1; }
wait_for() {
    for _ in $(seq 1200); do "$@" >/dev/null 2>&1 && return 0; sleep 0.05; done
    fail "$*"
}

# The shared folders come through a process, as NFS's come through a network: stopped, every access to them waits, also through files
# that are open already.
for folder in home shared; do
    start bindfs -f --multithreaded "/run/node/server/$folder" "/$folder"
    echo $! >"/run/node/serves-$folder"
    wait_for mountpoint -q "/$folder"
done
ip link set lo up
wait_for ip link show eth0
ip addr add "$address/24" dev eth0
ip link set eth0 up
install -d -o munge -g munge -m 755 /run/munge
install -d -o munge -g munge -m 700 /var/log/munge /var/lib/munge
start setpriv --reuid=munge --regid=munge --clear-groups munged --foreground
wait_for test -S /run/munge/munge.socket.2
install -d -m 755 /run/sshd
start /usr/sbin/sshd -D -o UsePAM=no -o UseDNS=no -o HostKey=/etc/ssh/ssh_host_ed25519_key

if [ "$role" = head ]; then
    install -d -o mysql -g mysql -m 755 /run/mysqld
    # Where newer clients look.
    ln -s mysqld /run/mariadbd
    start mariadbd --no-defaults --user=mysql --datadir=/var/lib/mysql --socket=/run/mysqld/mysqld.sock --skip-networking \
        --innodb-flush-log-at-trx-commit=0 --innodb-log-file-size=8M --innodb-lock-wait-timeout=900
    wait_for mariadb --no-defaults --socket=/run/mysqld/mysqld.sock -e 'select 1'
    start slurmdbd -D
    wait_for sacctmgr -n show cluster
    # shellcheck disable=SC1091
    . /etc/slurm/accounts
    start slurmctld -D -c
    wait_for sh -c 'scontrol ping | grep -q UP'
else
    start slurmd -D -N "$name"
fi
# As systemd does where it was installed.
if [ -x /opt/perdure/bin/perdure ]; then start /opt/perdure/bin/perdure agent >>/var/log/slurm/agent 2>&1; fi
touch /run/node/ready
# Bash reaps what loses its parent meanwhile. The pipe's end is the node's.
while read -r _ <&3; do :; done
