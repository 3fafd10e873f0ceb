# R: a random walk with a fixed seed and a linear fit on what was seen so far. Goes on slowly until it may hurry.
steps <- as.integer(commandArgs(TRUE)[1])
set.seed(1)
x <- numeric(0)
for (step in seq_len(steps)) {
  x <- c(x, sum(tail(x, 1)) + rnorm(1))
  slope <- if (step > 2) coef(lm(x ~ seq_along(x)))[[2]] else 0
  cat(sprintf("step %d %a %a\n", step, tail(x, 1), slope))
  Sys.sleep(if (step < 60 || file.exists("hurry")) 0.01 else 0.5)
}
cat("end\n")
