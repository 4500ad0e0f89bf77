-- The number of done tasks that a tube keeps, shown with the tube.
ALTER TYPE taskyard.tube_info ADD ATTRIBUTE kept bigint;
