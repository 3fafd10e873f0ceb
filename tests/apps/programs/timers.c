/* Signals, a POSIX timer, an interval timer, a periodic timerfd, an eventfd and epoll: ticks are counted, never timed.
   Until it may hurry, only some of the ticks count as steps: no timer is ever paused. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t alarms;
static void on_alarm(int number) { (void)number; alarms = alarms + 1; }

int main(int argc, char **argv) {
    long steps = argc > 1 ? atol(argv[1]) : 100;
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 7000}, {0, 7000}}, NULL);

    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_NONBLOCK);
    timer_t posix;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_create(CLOCK_MONOTONIC, &event, &posix);
    timer_settime(posix, 0, &(struct itimerspec){{0, 11000000}, {0, 11000000}}, NULL);

    int ticks = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    timerfd_settime(ticks, 0, &(struct itimerspec){{0, 5000000}, {0, 5000000}}, NULL);
    int bell = eventfd(0, EFD_NONBLOCK);
    int poll = epoll_create1(0);
    int all[] = {signals, ticks, bell};
    for (int i = 0; i < 3; i++) epoll_ctl(poll, EPOLL_CTL_ADD, all[i], &(struct epoll_event){.events = EPOLLIN, .data.fd = all[i]});

    uint64_t chain = 1, seen_usr = 0, passed = 0;
    for (long step = 0; step < steps;) {
        struct epoll_event ready[4];
        int count = epoll_wait(poll, ready, 4, 2000);
        if (count == 0) { printf("silent at step %ld\n", step); return 9; }
        for (int i = 0; i < count; i++) {
            uint64_t value;
            if (ready[i].data.fd == ticks && read(ticks, &value, 8) == 8) {
                value = 1;
                if (write(bell, &value, 8) != 8) return 8;
            } else if (ready[i].data.fd == bell && read(bell, &value, 8) == 8) {
                if (step >= 150 && access("hurry", F_OK) != 0 && ++passed % 40) continue;
                chain = chain * 6364136223846793005u + 1442695040888963407u;
                printf("step %ld %016llx\n", step++, (unsigned long long)chain);
            } else if (ready[i].data.fd == signals) {
                struct signalfd_siginfo info;
                while (read(signals, &info, sizeof info) == sizeof info) seen_usr++;
            }
        }
    }
    long before = alarms;
    for (int i = 0; i < 100 && alarms == before; i++) usleep(7000);
    printf("end alarms %s posix %s\n", alarms > before ? "yes" : "no", seen_usr > 3 ? "yes" : "no");
    return 0;
}
